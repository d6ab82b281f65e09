"""The stories that tinymath's problems tell: openings, and sequels that carry an opening on.

A problem is one opening and as many sequels as its chain has room for. An opening ends with one
quantity in hand; a sequel takes the quantity so far, called `x`, does something with it and leaves
another. So a few dozen pieces make thousands of different chains.

In a text, `{d1}`, `{c1}`, `{h1}`, `{t1}` are numbers of the ranges in problems.py (a digit, tens,
hundreds, thousands), `{A}`, `{B}`, `{C}` are people, `{she}`, `{her}` and `{him}` are A's
pronouns, `{noun}` is what is counted, and `{fruit}`, `{pastry}` and so on are drawn from `WORDS`.
In a step, `left op right | sentence`, the operands are such numbers, `x`, earlier results of the
same piece (`r1`, `r2`, ...) or a number that the text says in words; `{eq}` is the whole equation.
Sentences are short, for every token of an answer is paid for in each of its samples.
"""

from __future__ import annotations

from dataclasses import dataclass

THINGS, MONEY, AMOUNT = "things", "money", "amount"

WORDS = {
    "fruit": ("apples", "pears", "plums", "lemons", "oranges", "peaches", "melons"),
    "pastry": ("muffins", "cookies", "buns", "pies", "waffles", "cakes"),
    "toy": ("marbles", "stickers", "cards", "coins", "shells", "stamps", "beads"),
    "flower": ("roses", "tulips", "lilies", "daisies", "bushes"),
    "goods": ("pens", "candles", "mugs", "lamps", "books", "bottles", "balls"),
    "place": ("shops", "schools", "friends", "teams", "classes"),
}

# A's name decides the pronouns; B and C may be anyone else.
NAMES_SHE = ("Mia", "Anna", "Lucy", "Ella", "Nora", "Ruth", "Sara", "Ivy", "Rosa", "Clara")
NAMES_HE = ("Tom", "Ben", "Leo", "Max", "Omar", "Paul", "Hugo", "Ivan", "Luke", "Sam")


@dataclass(frozen=True)
class Piece:
    """An opening (`needs` is None) or a sequel, in several phrasings that share their steps."""

    needs: str | None  # the kind of quantity it carries on
    gives: str | None  # the kind of quantity it leaves; None where nothing can follow
    noun: str  # what is counted from here on
    texts: tuple[str, ...]
    steps: tuple[tuple[str, str, str, str], ...]  # (left, operator, right, sentence)
    asks: tuple[str, ...]


def _steps(lines: str) -> tuple[tuple[str, str, str, str], ...]:
    steps = []
    for line in lines.strip().splitlines():
        equation, sentence = line.split("|")
        left, operator, right = equation.split()
        steps.append((left, operator, right, sentence.strip()))
    return tuple(steps)


def _opening(
    gives: str, noun: str, texts: tuple[str, ...], steps: str, asks: tuple[str, ...]
) -> Piece:
    return Piece(None, gives, noun, texts, _steps(steps), asks)


def _sequel(
    needs: str,
    gives: str | None,
    texts: tuple[str, ...],
    steps: str,
    asks: tuple[str, ...],
    noun: str = "{noun}",
) -> Piece:
    return Piece(needs, gives, noun, texts, _steps(steps), asks)


OPENINGS = (
    # Things that can be counted, given away, shared and sold.
    _opening(
        THINGS,
        "{fruit}",
        (
            "{A} fills {c1} boxes with {c2} {noun} each. Then {she} throws {h1} bad {noun} away.",
            "In {A}'s barn are {c1} boxes of {c2} {noun}. {h1} of the {noun} turn bad.",
        ),
        """
        c1 * c2 | Boxes hold {eq} {noun}.
        r1 - h1 | {eq} {noun} are good.
        """,
        ("How many good {noun} are there?", "How many {noun} are left?"),
    ),
    _opening(
        THINGS,
        "{toy}",
        (
            "{A} has {h1} {noun}. {B} has {h2} {noun} more than {A}. They put them all together.",
            "{A} owns {h1} {noun} and {B} owns {h2} more than that. They share one big pile.",
        ),
        """
        h1 + h2 | {B} has {eq} {noun}.
        h1 + r1 | Together {eq} {noun}.
        """,
        ("How many {noun} do they have together?", "How many {noun} are in the pile?"),
    ),
    _opening(
        THINGS,
        "{pastry}",
        (
            "{A} bakes {c1} trays of {c2} {noun} and {c3} trays of {d1} {noun}.",
            "{A} puts {c1} trays with {c2} {noun} each and {c3} trays with {d1} {noun} each"
            " in the oven.",
        ),
        """
        c1 * c2 | Large ones hold {eq} {noun}.
        c3 * d1 | Small ones hold {eq} {noun}.
        r1 + r2 | {A} bakes {eq} {noun}.
        """,
        ("How many {noun} does {A} bake?", "How many {noun} is that?"),
    ),
    _opening(
        THINGS,
        "eggs",
        (
            "Each of {A}'s {c1} hens lays {d1} eggs a week. {A} collects the eggs for {d2} weeks"
            " and buys {h1} eggs from {B}.",
            "{A} keeps {c1} hens that lay {d1} eggs each every week. After {d2} weeks {she} adds"
            " {h1} eggs from {B}'s farm.",
        ),
        """
        c1 * d1 | Hens lay {eq} eggs.
        r1 * d2 | In all {eq} eggs.
        r2 + h1 | With those {eq} eggs.
        """,
        ("How many eggs does {A} have?",),
    ),
    _opening(
        THINGS,
        "books",
        (
            "A library has {d1} shelves with {h1} books each. {A} lends {c1} books out and buys"
            " {h2} new ones.",
            "{A} runs a library of {d1} shelves, each with {h1} books. {c1} books get lost and"
            " {h2} new ones arrive.",
        ),
        """
        d1 * h1 | Shelves hold {eq} books.
        r1 - c1 | {eq} books remain.
        r2 + h2 | With new ones {eq} books.
        """,
        ("How many books are in the library?",),
    ),
    _opening(
        THINGS,
        "{flower}",
        (
            "{A} plants {c1} rows of {c2} {noun}. {B} plants {h1} {noun} fewer than {A}.",
            "{A}'s garden has {c1} rows with {c2} {noun} each. {B}'s garden has {h1} {noun} less.",
        ),
        """
        c1 * c2 | {A} has {eq} {noun}.
        r1 - h1 | {B} has {eq} {noun}.
        r1 + r2 | Together {eq} {noun}.
        """,
        ("How many {noun} are in both gardens together?", "How many {noun} do they have in all?"),
    ),
    _opening(
        THINGS,
        "pencils",
        (
            "A school has {d1} classes of {c1} pupils. {A} orders {d2} pencils for each pupil.",
            "{A} buys {d2} pencils for every pupil in {d1} classes of {c1} pupils.",
        ),
        """
        d1 * c1 | In all {eq} pupils.
        r1 * d2 | {A} needs {eq} pencils.
        """,
        ("How many pencils does {A} buy?",),
    ),
    _opening(
        THINGS,
        "cards",
        (
            "{A} has {h1} cards. {She} buys {c1} packs of {c2} cards and loses {h2} cards.",
            "{A} buys {c1} packs with {c2} cards each to add to {her} {h1} cards. Later {h2} cards"
            " are missing.",
        ),
        """
        c1 * c2 | Packs hold {eq} cards.
        h1 + r1 | {A} has {eq} cards.
        r2 - h2 | {eq} cards remain.
        """,
        ("How many cards does {A} have left?",),
    ),
    _opening(
        THINGS,
        "beads",
        (
            "{A} has {t1} beads. {She} makes {c1} chains with {c2} beads each.",
            "From a bag of {t1} beads {A} makes {c1} chains of {c2} beads.",
        ),
        """
        c1 * c2 | Chains need {eq} beads.
        t1 - r1 | {eq} beads remain.
        """,
        ("How many beads are left?",),
    ),
    _opening(
        THINGS,
        "{goods}",
        (
            "{A}'s factory makes {h1} {noun} every morning and {h2} {noun} every afternoon. It"
            " runs for {d1} days.",
            "For {d1} days {A} makes {h1} {noun} before lunch and {h2} {noun} after it each day.",
        ),
        """
        h1 + h2 | {A} makes {eq} {noun}.
        r1 * d1 | In all {eq} {noun}.
        """,
        ("How many {noun} does {A} make?",),
    ),
    _opening(
        THINGS,
        "{goods}",
        (
            "A truck brings {A} {c1} crates of {c2} {noun}. A van brings {d1} crates of {h1}"
            " {noun}.",
            "{A} gets {c1} crates with {c2} {noun} each by truck and {d1} crates with {h1} {noun}"
            " each by van.",
        ),
        """
        c1 * c2 | Truck brings {eq} {noun}.
        d1 * h1 | Van brings {eq} {noun}.
        r1 + r2 | Together {eq} {noun}.
        """,
        ("How many {noun} does {A} get?",),
    ),
    _opening(
        THINGS,
        "{fruit}",
        (
            "{A} picks {c1} {noun} an hour for {d1} hours. {B} picks {c2} {noun} an hour for {c3}"
            " hours and gives them all to {A}.",
            "{A} works {d1} hours and picks {c1} {noun} in each. {B} works {c3} hours for {A} and"
            " picks {c2} {noun} in each.",
        ),
        """
        c1 * d1 | {A} picks {eq} {noun}.
        c2 * c3 | {B} picks {eq} {noun}.
        r1 + r2 | {A} has {eq} {noun}.
        """,
        ("How many {noun} does {A} have?",),
    ),
    _opening(
        THINGS,
        "chairs",
        (
            "A hall has {c1} rows of {c2} chairs. {A} takes {h1} chairs out and adds {d1} rows of"
            " {c3} chairs.",
            "{A} sets up {c1} rows of {c2} chairs, removes {h1} chairs and then sets up {d1} more"
            " rows of {c3}.",
        ),
        """
        c1 * c2 | First {eq} chairs.
        r1 - h1 | Then {eq} chairs remain.
        d1 * c3 | Rows have {eq} chairs.
        r2 + r3 | At last {eq} chairs.
        """,
        ("How many chairs are there in the end?",),
    ),
    _opening(
        THINGS,
        "stickers",
        (
            "{A} has {d1} albums of {c1} pages with {d2} stickers on each page. {She} takes {h1}"
            " stickers out.",
            "{A} fills {c1} pages in each of {d1} albums with {d2} stickers a page. Then {h1}"
            " stickers fall out.",
        ),
        """
        d1 * c1 | Albums have {eq} pages.
        r1 * d2 | Pages hold {eq} stickers.
        r2 - h1 | {eq} stickers remain.
        """,
        ("How many stickers are left in the albums?",),
    ),
    _opening(
        THINGS,
        "{toy}",
        (
            "{A} finds {h1} {noun}. {B} finds {d1} times as many, and {C} finds {h2} fewer than"
            " {B}. {A} keeps them all.",
            "{B} has {d1} times as many {noun} as {A}, who has {h1}. {C} has {h2} fewer than {B}."
            " They give them all to {A}.",
        ),
        """
        h1 * d1 | {B} has {eq} {noun}.
        r1 - h2 | {C} has {eq} {noun}.
        h1 + r1 | Two have {eq} {noun}.
        r3 + r2 | All have {eq} {noun}.
        """,
        ("How many {noun} are there in all?",),
    ),
    _opening(
        THINGS,
        "tiles",
        (
            "{A} needs {c1} rows of {c2} tiles for the floor and {d1} rows of {c3} tiles for the"
            " wall.",
            "The floor takes {c1} rows of {c2} tiles, the wall {d1} rows of {c3} tiles. {A} buys"
            " them.",
        ),
        """
        c1 * c2 | Floor needs {eq} tiles.
        d1 * c3 | Wall needs {eq} tiles.
        r1 + r2 | {A} needs {eq} tiles.
        """,
        ("How many tiles does {A} need?",),
    ),
    _opening(
        THINGS,
        "fish",
        (
            "{A}'s pond has {t1} fish. {A} takes out {c1} nets of {d1} fish and puts {h1} young"
            " fish in.",
            "There are {t1} fish in a pond. {A} catches {d1} fish with each of {c1} nets and adds"
            " {h1} young fish.",
        ),
        """
        c1 * d1 | Nets hold {eq} fish.
        t1 - r1 | {eq} fish remain.
        r2 + h1 | Then {eq} fish.
        """,
        ("How many fish are in the pond now?",),
    ),
    _opening(
        THINGS,
        "trees",
        (
            "{A}'s wood has {c1} rows of {c2} trees. A storm fells {h1} trees and {A} plants {h2}"
            " new ones.",
            "{A} grows {c1} rows of {c2} trees, cuts {h1} of them down and plants {h2} others.",
        ),
        """
        c1 * c2 | First {eq} trees.
        r1 - h1 | {eq} trees remain.
        r2 + h2 | Now {eq} trees.
        """,
        ("How many trees are there now?",),
    ),
    _opening(
        THINGS,
        "bricks",
        (
            "{A} orders {d1} loads of {h1} bricks and builds {c1} walls of {c2} bricks each.",
            "Each of {c1} walls takes {c2} bricks. {A} buys {d1} loads of {h1} bricks and builds"
            " the walls.",
        ),
        """
        d1 * h1 | Loads have {eq} bricks.
        c1 * c2 | Walls take {eq} bricks.
        r1 - r2 | {eq} bricks remain.
        """,
        ("How many bricks are left?",),
    ),
    _opening(
        THINGS,
        "{pastry}",
        (
            "Every day {A} bakes {c1} {noun} and eats {d1} of them. {She} does so for {c2} days.",
            "For {c2} days {A} bakes {c1} {noun} a day, of which {she} eats {d1} each day.",
        ),
        """
        c1 - d1 | {A} keeps {eq} {noun}.
        r1 * c2 | In all {eq} {noun}.
        """,
        ("How many {noun} are left?",),
    ),
    _opening(
        THINGS,
        "{goods}",
        (
            "{A}'s store has {h1} {noun}. It gets {c1} boxes of {c2} {noun} and sells {h2} {noun}.",
            "{A} adds {c1} boxes with {c2} {noun} each to the {h1} {noun} in the store. People buy"
            " {h2} of them.",
        ),
        """
        c1 * c2 | Boxes hold {eq} {noun}.
        h1 + r1 | Store has {eq} {noun}.
        r2 - h2 | {eq} {noun} remain.
        """,
        ("How many {noun} are in the store now?",),
    ),
    _opening(
        THINGS,
        "blocks",
        (
            "{A}'s tower has {c1} layers of {c2} blocks. {B}'s tower has half as many blocks. {A}"
            " takes both apart.",
            "{A} builds {c1} layers of {c2} blocks and {B} uses half as many blocks. {A} collects"
            " them all.",
        ),
        """
        c1 * c2 | {A} uses {eq} blocks.
        r1 / 2 | {B} uses {eq} blocks.
        r1 + r2 | Together {eq} blocks.
        """,
        ("How many blocks are there in all?",),
    ),
    # Money, in dollars.
    _opening(
        MONEY,
        "dollars",
        (
            "{A} works {c1} hours for {c2} dollars an hour and pays {h1} dollars of rent.",
            "{A} earns {c2} dollars an hour. {She} works {c1} hours and spends {h1} dollars.",
        ),
        """
        c1 * c2 | {A} earns {eq} dollars.
        r1 - h1 | {She} keeps {eq} dollars.
        """,
        ("How many dollars does {A} keep?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} sells {c1} {pastry} for {d1} dollars each and {c2} {goods} for {c3} dollars each.",
            "At the market {A} gets {d1} dollars for each of {c1} {pastry} and {c3} dollars for"
            " each of {c2} {goods}.",
        ),
        """
        c1 * d1 | The {pastry} bring {eq} dollars.
        c2 * c3 | The {goods} bring {eq} dollars.
        r1 + r2 | Together {eq} dollars.
        """,
        ("How many dollars does {A} get?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} has {t1} dollars. {She} buys {d1} coats at {c1} dollars each and {d2} pairs of"
            " shoes at {c2} dollars each.",
            "With {t1} dollars {A} pays for {d1} coats at {c1} dollars and {d2} pairs of shoes at"
            " {c2} dollars.",
        ),
        """
        d1 * c1 | Coats cost {eq} dollars.
        d2 * c2 | Shoes cost {eq} dollars.
        r1 + r2 | Together {eq} dollars.
        t1 - r3 | {A} has {eq} dollars.
        """,
        ("How many dollars does {A} have left?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} saves {c1} dollars a week for {c2} weeks and gets {h1} dollars from {B}. {She}"
            " buys a bike for {h2} dollars.",
            "For {c2} weeks {A} puts {c1} dollars a week aside. {B} adds {h1} dollars, and a bike"
            " costs {him} {h2} dollars.",
        ),
        """
        c1 * c2 | {A} saves {eq} dollars.
        r1 + h1 | With gift {eq} dollars.
        r2 - h2 | Then {eq} dollars remain.
        """,
        ("How many dollars are left?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} sells {h1} tickets for {d1} dollars each. The hall costs {h2} dollars and the band"
            " {c1} dollars.",
            "{A} pays {h2} dollars for a hall and {c1} dollars for a band, and sells {h1} tickets"
            " at {d1} dollars each.",
        ),
        """
        h1 * d1 | Tickets bring {eq} dollars.
        h2 + c1 | {A} pays {eq} dollars.
        r1 - r2 | {She} keeps {eq} dollars.
        """,
        ("How many dollars does {A} keep?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} buys {c1} {goods} for {c2} dollars each and sells each for {d1} dollars more.",
            "{A} has {c1} {goods} that cost {him} {c2} dollars each. {She} sells them, each for"
            " {d1} dollars more.",
        ),
        """
        c2 + d1 | Each brings {eq} dollars.
        c1 * r1 | {A} gets {eq} dollars.
        """,
        ("How many dollars does {A} get for them?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} rents out {d1} rooms for {h1} dollars each and pays {h2} dollars for repairs.",
            "Each of {A}'s {d1} rooms brings {h1} dollars a month. This month repairs cost {h2}"
            " dollars.",
        ),
        """
        d1 * h1 | Rooms bring {eq} dollars.
        r1 - h2 | Then {eq} dollars remain.
        """,
        ("How many dollars does {A} keep?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} asks for gifts: {c1} people give {c2} dollars each and {d1} firms give {h1}"
            " dollars each.",
            "{c1} people give {A} {c2} dollars each, and {d1} firms add {h1} dollars each.",
        ),
        """
        c1 * c2 | People give {eq} dollars.
        d1 * h1 | Firms give {eq} dollars.
        r1 + r2 | Together {eq} dollars.
        """,
        ("How many dollars does {A} get?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} earns {h1} dollars a week and spends {c1} dollars of it. {She} does so for {d1}"
            " weeks.",
            "For {d1} weeks {A} is paid {h1} dollars a week, of which {she} spends {c1} each week.",
        ),
        """
        h1 - c1 | {A} keeps {eq} dollars.
        r1 * d1 | In all {eq} dollars.
        """,
        ("How many dollars does {A} save?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} sells {c1} cups of tea for {d1} dollars each and {c2} cups of juice for {d2}"
            " dollars each. The drinks cost {him} {c3} dollars.",
            "{A}'s stand sells {c1} teas at {d1} dollars and {c2} juices at {d2} dollars. {She}"
            " pays {c3} dollars for the stand.",
        ),
        """
        c1 * d1 | Tea brings {eq} dollars.
        c2 * d2 | Juice brings {eq} dollars.
        r1 + r2 | Both bring {eq} dollars.
        r3 - c3 | {A} keeps {eq} dollars.
        """,
        ("How many dollars does {A} keep?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{B} pays {h1} dollars for a phone and {c1} dollars for its case. {A} has {d1} times"
            " as much money as {B} pays.",
            "A phone costs {h1} dollars and a case {c1} dollars. {A} has {d1} times as much money"
            " as both cost.",
        ),
        """
        h1 + c1 | Both cost {eq} dollars.
        r1 * d1 | {A} has {eq} dollars.
        """,
        ("How many dollars does {A} have?",),
    ),
    _opening(
        MONEY,
        "dollars",
        (
            "{A} mows {c1} lawns for {c2} dollars each and gives half of the money to {B}.",
            "{A} and {B} mow {c1} lawns for {c2} dollars each. {A} gets half of the money.",
        ),
        """
        c1 * c2 | Lawns bring {eq} dollars.
        r1 / 2 | {A} has {eq} dollars.
        """,
        ("How many dollars does {A} have then?",),
    ),
    # Amounts that add up but change no hands: pages, minutes, kilometers.
    _opening(
        AMOUNT,
        "pages",
        (
            "{A} reads {c1} pages a day for {c2} days and then {h1} pages on the weekend.",
            "For {c2} days {A} reads {c1} pages a day. On the last day {she} reads {h1} more.",
        ),
        """
        c1 * c2 | {A} reads {eq} pages.
        r1 + h1 | In all {eq} pages.
        """,
        ("How many pages does {A} read?",),
    ),
    _opening(
        AMOUNT,
        "meters",
        (
            "{A} runs {d1} laps of {h1} meters and walks {d2} laps of {h2} meters.",
            "{A} runs {h1} meters {d1} times and then walks {h2} meters {d2} times.",
        ),
        """
        d1 * h1 | {A} runs {eq} meters.
        d2 * h2 | {A} walks {eq} meters.
        r1 + r2 | Together {eq} meters.
        """,
        ("How many meters is that?",),
    ),
    _opening(
        AMOUNT,
        "points",
        (
            "{A} scores {h1} points in the first game, twice as many in the second, and {h2} fewer"
            " than in the second in the third.",
            "{A} gets {h1} points in round one, twice that in round two, and in round three {h2}"
            " less than in round two.",
        ),
        """
        h1 * 2 | Second is {eq} points.
        r1 - h2 | Third is {eq} points.
        h1 + r1 | Two are {eq} points.
        r3 + r2 | All are {eq} points.
        """,
        ("How many points does {A} have?",),
    ),
    _opening(
        AMOUNT,
        "kilometers",
        (
            "{A} drives {c1} kilometers an hour for {c2} hours and {c3} kilometers an hour for {d1}"
            " hours.",
            "{A} is on the road for {c2} hours at {c1} kilometers an hour and {d1} hours at {c3}.",
        ),
        """
        c1 * c2 | First {eq} kilometers.
        c3 * d1 | Then {eq} kilometers.
        r1 + r2 | Together {eq} kilometers.
        """,
        ("How many kilometers does {A} drive?",),
    ),
    _opening(
        AMOUNT,
        "liters",
        (
            "{A}'s tank holds {t1} liters. {A} uses {c1} liters a day for {c2} days, then rain adds"
            " {h1} liters.",
            "From a tank of {t1} liters {A} takes {c1} liters on each of {c2} days. {h1} liters of"
            " rain fall in.",
        ),
        """
        c1 * c2 | {A} uses {eq} liters.
        t1 - r1 | {eq} liters remain.
        r2 + h1 | With rain {eq} liters.
        """,
        ("How many liters are in the tank?",),
    ),
    _opening(
        AMOUNT,
        "words",
        (
            "{A} types {c1} words a minute for {c2} minutes and deletes {h1} words.",
            "{A} writes for {c2} minutes at {c1} words a minute. Then {she} cuts {h1} words.",
        ),
        """
        c1 * c2 | {A} types {eq} words.
        r1 - h1 | {eq} words remain.
        """,
        ("How many words remain?",),
    ),
    _opening(
        AMOUNT,
        "minutes",
        (
            "{A} plays the piano {c1} minutes a day on {d1} days a week. {She} does so for {d2}"
            " weeks and plays {h1} minutes more at a concert.",
            "On {d1} days of each week {A} plays {c1} minutes. After {d2} weeks {she} plays {h1}"
            " minutes at a concert.",
        ),
        """
        c1 * d1 | {A} plays {eq} minutes.
        r1 * d2 | In all {eq} minutes.
        r2 + h1 | With concert {eq} minutes.
        """,
        ("How many minutes does {A} play?",),
    ),
    _opening(
        AMOUNT,
        "stairs",
        (
            "A tower has {c1} floors with {c2} stairs each. {A} climbs it, and then {d1} floors of"
            " {c3} stairs at home.",
            "{A} climbs {c1} floors of {c2} stairs in a tower and {d1} floors of {c3} stairs at"
            " home.",
        ),
        """
        c1 * c2 | Tower has {eq} stairs.
        d1 * c3 | At home {eq} stairs.
        r1 + r2 | In all {eq} stairs.
        """,
        ("How many stairs does {A} climb?",),
    ),
    _opening(
        AMOUNT,
        "minutes",
        (
            "{A} watches {c1} shows of {c2} minutes and {d1} films of {h1} minutes.",
            "{A} sees {d1} films that last {h1} minutes each and {c1} shows that last {c2} minutes"
            " each.",
        ),
        """
        c1 * c2 | Shows last {eq} minutes.
        d1 * h1 | Films last {eq} minutes.
        r1 + r2 | Together {eq} minutes.
        """,
        ("How many minutes does {A} watch?",),
    ),
    _opening(
        AMOUNT,
        "kilometers",
        (
            "{A} cycles {h1} kilometers in May, {h2} in June, and in July {d1} times as many as in"
            " May and June together.",
            "In May {A} rides {h1} kilometers and in June {h2}. In July {she} rides {d1} times the"
            " total of both.",
        ),
        """
        h1 + h2 | Both are {eq} kilometers.
        r1 * d1 | July is {eq} kilometers.
        r1 + r2 | All are {eq} kilometers.
        """,
        ("How many kilometers does {A} cycle in all three months?",),
    ),
    _opening(
        AMOUNT,
        "meters",
        (
            "{A} swims {c1} lengths of {c2} meters. {B} swims {h1} meters less. They add their"
            " meters up.",
            "{A} swims {c2} meters {c1} times and {B} swims {h1} meters less than {A}. They count"
            " them together.",
        ),
        """
        c1 * c2 | {A} swims {eq} meters.
        r1 - h1 | {B} swims {eq} meters.
        r1 + r2 | Together {eq} meters.
        """,
        ("How many meters do they swim together?",),
    ),
    _opening(
        AMOUNT,
        "kilos",
        (
            "{A} has {d1} sacks with {h1} kilos of flour each and uses {c1} kilos a day for {c2}"
            " days.",
            "For {c2} days {A} uses {c1} kilos of flour a day from {d1} sacks of {h1} kilos.",
        ),
        """
        d1 * h1 | Sacks hold {eq} kilos.
        c1 * c2 | {A} uses {eq} kilos.
        r1 - r2 | {eq} kilos remain.
        """,
        ("How many kilos are left?",),
    ),
)

SEQUELS = (
    # What becomes of things.
    _sequel(
        THINGS,
        THINGS,
        ("Then {A} gets {h1} more {noun}.", "Later {h1} {noun} are added."),
        "x + h1 | Then {eq} {noun}.",
        ("How many {noun} are there then?",),
    ),
    _sequel(
        THINGS,
        THINGS,
        ("Then {h1} {noun} are given away.", "{A} gives {h1} of the {noun} to {B}."),
        "x - h1 | Then {eq} {noun} remain.",
        ("How many {noun} does {A} have left?",),
    ),
    _sequel(
        THINGS,
        THINGS,
        ("Half of the {noun} get lost.", "{A} gives half of the {noun} away."),
        "x / 2 | Half is {eq} {noun}.",
        ("How many {noun} are left after that?",),
    ),
    _sequel(
        THINGS,
        THINGS,
        (
            "{A} brings in {c1} bags of {d1} {noun} more.",
            "Then {c1} bags with {d1} {noun} each are added.",
        ),
        """
        c1 * d1 | Bags hold {eq} {noun}.
        x + r1 | Now {eq} {noun}.
        """,
        ("How many {noun} are there now?",),
    ),
    _sequel(
        THINGS,
        THINGS,
        (
            "{c1} people take {c2} {noun} each.",
            "{A} sends {c2} {noun} to each of {c1} people.",
        ),
        """
        c1 * c2 | People get {eq} {noun}.
        x - r1 | Then {eq} {noun} remain.
        """,
        ("How many {noun} remain?",),
    ),
    _sequel(
        THINGS,
        None,
        (
            "All {noun} are shared equally among {d1} {place}.",
            "{A} splits the {noun} evenly between {d1} {place}.",
        ),
        "x / d1 | Each gets {eq} {noun}.",
        ("How many {noun} does each of the {place} get?",),
    ),
    _sequel(
        THINGS,
        MONEY,
        (
            "{A} sells all the {noun} for {d1} dollars each.",
            "All {noun} are sold, each for {d1} dollars.",
        ),
        "x * d1 | They bring {eq} dollars.",
        ("How many dollars does {A} get for the {noun}?",),
        noun="dollars",
    ),
    _sequel(
        THINGS,
        None,
        (
            "{B} has {h1} {noun} more than there are here.",
            "In {B}'s house there are {h1} {noun} more than that.",
        ),
        """
        x + h1 | {B} has {eq} {noun}.
        x + r1 | Together {eq} {noun}.
        """,
        ("How many {noun} is that together?",),
    ),
    # What becomes of money.
    _sequel(
        MONEY,
        MONEY,
        ("Then {A} spends {h1} dollars on food.", "A new radio costs {A} {h1} dollars."),
        "x - h1 | Then {eq} dollars remain.",
        ("How many dollars are left after that?",),
    ),
    _sequel(
        MONEY,
        MONEY,
        ("{A} earns {h1} dollars more.", "Then {B} pays {A} {h1} dollars back."),
        "x + h1 | Now {eq} dollars.",
        ("How many dollars does {A} have now?",),
    ),
    _sequel(
        MONEY,
        MONEY,
        (
            "With the money {A} buys {c1} {goods} for {d1} dollars each.",
            "{A} pays {d1} dollars for each of {c1} {goods}.",
        ),
        """
        c1 * d1 | The {goods} cost {eq} dollars.
        x - r1 | Then {eq} dollars remain.
        """,
        ("How many dollars remain?",),
    ),
    _sequel(
        MONEY,
        MONEY,
        (
            "Then {A} works {c1} hours for {c2} dollars an hour.",
            "{A} takes a job of {c1} hours at {c2} dollars an hour.",
        ),
        """
        c1 * c2 | Work brings {eq} dollars.
        x + r1 | Now {eq} dollars.
        """,
        ("How many dollars does {A} have in the end?",),
    ),
    _sequel(
        MONEY,
        None,
        (
            "{A} shares the money equally with others, {d1} people in all.",
            "The money is split evenly among {d1} people.",
        ),
        "x / d1 | Each gets {eq} dollars.",
        ("How many dollars does each person get?",),
    ),
    _sequel(
        MONEY,
        None,
        ("{B} has {d1} times as many dollars.", "{B} owns {d1} times as much money as {A}."),
        """
        x * d1 | {B} has {eq} dollars.
        x + r1 | Together {eq} dollars.
        """,
        ("How many dollars do {A} and {B} have together?",),
    ),
    _sequel(
        MONEY,
        MONEY,
        ("{A} puts half of the money in the bank.", "{A} gives half of the dollars to {B}."),
        "x / 2 | Half is {eq} dollars.",
        ("How many dollars does {A} have in hand?",),
    ),
    # What becomes of amounts.
    _sequel(
        AMOUNT,
        AMOUNT,
        (
            "The month before it was {h1} {noun} less. {A} adds both months up.",
            "Last month's number was {h1} {noun} lower, and {A} counts both months.",
        ),
        """
        x - h1 | Before was {eq} {noun}.
        x + r1 | Both are {eq} {noun}.
        """,
        ("How many {noun} are both months together?",),
    ),
    _sequel(
        AMOUNT,
        AMOUNT,
        (
            "{B} adds {c1} times {c2} {noun}.",
            "To this {B} adds {c2} {noun} on each of {c1} days.",
        ),
        """
        c1 * c2 | {B} adds {eq} {noun}.
        x + r1 | Then {eq} {noun}.
        """,
        ("How many {noun} is it with {B}'s part?",),
    ),
    _sequel(
        AMOUNT,
        AMOUNT,
        ("Of these, {h1} {noun} do not count.", "But {h1} {noun} are not counted."),
        "x - h1 | So {eq} {noun} count.",
        ("How many {noun} count?",),
    ),
    _sequel(
        AMOUNT,
        AMOUNT,
        ("Then {A} adds {h1} {noun}.", "Another {h1} {noun} come on top."),
        "x + h1 | Now {eq} {noun}.",
        ("How many {noun} is it with these?",),
    ),
    _sequel(
        AMOUNT,
        None,
        (
            "{A} spreads all {noun} evenly over {d1} days.",
            "The total is divided equally by {d1} days.",
        ),
        "x / d1 | Each day has {eq} {noun}.",
        ("How many {noun} is that for each day?",),
    ),
    _sequel(
        AMOUNT,
        None,
        (
            "{B} has {d1} times as many {noun}.",
            "{B}'s total is {d1} times the total of {A}.",
        ),
        """
        x * d1 | {B} has {eq} {noun}.
        x + r1 | Together {eq} {noun}.
        """,
        ("How many {noun} do {A} and {B} have together?",),
    ),
    _sequel(
        AMOUNT,
        None,
        ("{A}'s goal is {t1} {noun}.", "{A} wants to reach {t1} {noun}."),
        "t1 - x | {eq} {noun} remain.",
        ("How many {noun} are missing to the goal?",),
    ),
)
