"""Pictures and a page of one or several finished journals: `sharegen report`.

`outcomes` reads a journal with its verdicts, `curves` measures, `pictures` says what to draw,
`svg` draws it for `figures`, `terminal` prints it, `page` is the page that holds everything.
"""
