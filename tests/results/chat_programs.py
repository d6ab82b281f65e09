"""Answers as chat models write them, each with a right program in it, for `test_completion.py`.

`inc(x)` is `x + 1`; a script reads two integers on a line and prints their sum.
"""

from __future__ import annotations

F = "def inc(x):\n    return x + 1\n"
G = "def inc(x):\n    return x\n"  # a wrong one
S = "a, b = map(int, input().split())\nprint(a + b)\n"
T = "a, b = map(int, input().split())\nprint(a - b)\n"  # a wrong one


def fenced(code: str, language: str = "python", mark: str = "```") -> str:
    return f"{mark}{language}\n{code}{mark}\n"


FUNCTIONS = {
    "alone": fenced(F),
    "a sentence on both sides": f"Sure! Here it is:\n\n{fenced(F)}\nIt adds one to x.",
    "py": fenced(F, "py"),
    "python3": fenced(F, "python3"),
    "Python": fenced(F, "Python"),
    "Python with a space": fenced(F, " Python 3"),
    "a file's name behind the language": fenced(F, "python title=inc.py"),
    "braces": fenced(F, "{.python .numberLines}"),
    "without a language": fenced(F, ""),
    "tildes": fenced(F, mark="~~~"),
    "four backticks": fenced(F, mark="````"),
    "four backticks around three": fenced(f'"""\n```\ninc(1)\n```\n"""\n{F}', mark="````"),
    "a usage example": f"{fenced(F)}Usage:\n{fenced('print(inc(2))  # 3')}",
    "a usage example without a language": f"{fenced(F)}Usage:\n{fenced('print(inc(2))', '')}",
    "a usage example that asks": fenced(F) + fenced("print(inc(int(input())))\n"),
    "tests behind it": fenced(F) + fenced("def test_inc():\n    assert inc(1) == 2\ntest_inc()\n"),
    "an output": f"{fenced(F)}Output:\n{fenced('3', '')}",
    "an output with its language": fenced(F) + fenced("3\n", "output"),
    "text": fenced(F) + fenced("inc(2) is 3\n", "text"),
    "json": fenced(F) + fenced('{"inc": 3}\n', "json"),
    "bash": fenced(F) + fenced("python inc.py\n", "bash"),
    "console": fenced("pip install inc\n", "console") + fenced(F),
    "a session of the interpreter": fenced(F) + fenced(">>> inc(2)\n3\n", "pycon"),
    "imports in a block of their own": fenced("import math\n")
    + fenced("def inc(x):\n    return math.floor(x) + 1\n"),
    "names imported in a block of their own": fenced("from math import floor as down\n")
    + fenced("def inc(x):\n    return down(x) + 1\n"),
    "all names of a module": fenced("from math import *\n")
    + fenced("def inc(x):\n    return floor(x) + 1\n"),
    "imports behind it": fenced("def inc(x):\n    return math.floor(x) + 1\n")
    + "With this import:\n"
    + fenced("import math\n"),
    "a helper in a block of its own": fenced("def one():\n    return 1\n")
    + fenced("def inc(x):\n    return x + one()\n"),
    "a helper behind it": fenced("def inc(x):\n    return x + one()\n")
    + fenced("def one():\n    return 1\n"),
    "a helper of a helper": fenced("import math\nONE = 1.5\n")
    + fenced("def one():\n    return math.floor(ONE)\n")
    + fenced("def inc(x):\n    return x + one()\n"),
    "the future first": fenced("import math\n")
    + fenced(
        "from __future__ import annotations\ndef inc(x: int):\n    return math.floor(x) + 1\n"
    ),
    "corrected": f"{fenced(G)}Wait, that is wrong. Fixed:\n{fenced(F)}",
    "corrected, then cut": f"{fenced(F)}Or shorter:\n```python\ndef inc(x):\n    return (x +",
    "corrected with another helper": fenced("def one():\n    return 0\n")
    + fenced("def one():\n    return 1\n")
    + fenced("def inc(x):\n    return x + one()\n"),
    "cut behind the program": f"```python\n{F}",
    "cut within an example": f"```python\n{F}\nprint(inc(",
    "cut within a comment": f"```python\n{F}\n# this is",
    "in a list": "1. First:\n\n   ```python\n   def inc(x):\n       return x + 1\n   ```\n2. Done.",
    "behind a bullet": "- ```python\n  def inc(x):\n      return x + 1\n  ```\n",
    "in a quotation": "> ```python\n> def inc(x):\n>     return x + 1\n> ```\n",
    "Windows' line ends": fenced(F).replace("\n", "\r\n"),
    "a fence in a docstring": fenced(
        'def inc(x):\n    """Add one.\n\n    ```\n    inc(1)\n    ```\n    """\n    return x + 1\n'
    ),
    "a fence with a language in a docstring": fenced(
        "def inc(x):\n    '''Add one.\n```python\ninc(1)\n```\n    '''\n    return x + 1\n"
    ),
    "an outer docstring with a fence": fenced(f'"""\n```\ninc(1)\n```\n"""\n{F}'),
    "a docstring without an end before it": '```python\ndef inc(x):\n    """Add\n```\nSorry:\n'
    + fenced(F),
    "a fence that was not closed": f"```python\nimport math\n\nThen:\n{fenced(F)}",
    "thoughts": f"<think>\nMaybe\n{fenced(G)}no.\n</think>\n{fenced(F)}",
    "thoughts whose beginning the prompt has": f"Perhaps {fenced(G)}\n</think>\n\n{fenced(F)}",
    "thoughts with an open fence": f"<think>\n```python\n{G}</think>\n{fenced(F)}",
    "a channel for the answer": "<|channel|>analysis<|message|>So\n"
    f"{fenced(G)}<|end|><|start|>assistant<|channel|>final<|message|>{fenced(F)}<|return|>",
    "an end of turn": f"{fenced(F)}<|im_end|>\n<|im_start|>user\nAnother:\n{fenced(G)}",
    "an end of text in the block": f"```python\n{F}<|endoftext|>",
    "tags": f"[PYTHON]\n{F}[/PYTHON]\n[TESTS]\nassert inc(1) == 2\n[/TESTS]",
    "code tags": f"<code>\n{F}</code>",
    "no fence": F,
    "no fence, with sentences": f"Here is the function:\n\n{F}\nIt adds one to x.\n",
    "no fence, an output in one": f"{F}\nOutput:\n\n```\n3\n```\n",
    "indented as code": "Here:\n\n    def inc(x):\n        return x + 1\n\nDone.\n",
    "on one line": "It is ```python inc = lambda x: x + 1``` as you see.",
    "the last fence behind the code": "```python\ndef inc(x):\n    return x + 1```",
    "a lambda": fenced("inc = lambda x: x + 1\n"),
    "a lambda, then an example": fenced("inc = lambda x: x + 1\n")
    + fenced("y = inc(1)\nprint(y)\n"),
    "commands of a notebook": fenced(f"!pip install numpy\n{F}"),
    "Markdown around Markdown": f"````markdown\n# Answer\n{fenced(F)}````\n",
    "Markdown in a fence of three": f"```md\nHere:\n{fenced(F)}```\n",
    "HTML": f'<pre><code class="language-python">{F}</code></pre>',
    "a session that defines it": fenced(
        ">>> def inc(x):\n...     return x + 1\n...\n>>> inc(1)\n2\n", ""
    ),
    "a closing fence with words behind it": f"```python\n{F}``` That is all.\n{fenced('inc(1)')}",
    "a method": fenced("class Other:\n    def inc(self): pass\n") + fenced(F),
    "two files": fenced("def one():\n    return 1\n", "python one.py")
    + fenced(
        "from functools import cache\n@cache\ndef inc(x):\n    return x + one()\n", "py inc.py"
    ),
    "the same twice, the last without its import": fenced(
        "import math\ndef inc(x):\n    return x + math.floor(1.5)\n"
    )
    + fenced("def inc(x):\n    return math.floor(1.5) + x\n"),
    "tests that define things": fenced(F) + fenced("x = 5\ndef check():\n    assert inc(x) == 6\n"),
    "a wrong language": fenced(F, "java"),
    "headings": f"### Solution\n\n{fenced(F)}\n### Complexity\n\n`O(1)`",
    "a class besides": fenced(f"class Adder:\n    pass\n\n{F}") + fenced("Adder()\n"),
    "decorated": fenced("import functools\n")
    + fenced("@functools.cache\ndef inc(x):\n    return x + 1\n"),
    "an example that runs only as a script": fenced(
        f"{F}\nif __name__ == '__main__':\n    1 / 0\n"
    ),
}

SCRIPTS = {
    "alone": fenced(S),
    "an input and an output": f"{fenced(S)}Input:\n{fenced('1 2', '')}Output:\n{fenced('3', '')}",
    "an output that is Python": fenced(S) + fenced("3\n", ""),
    "an example": fenced(S) + "For example:\n" + fenced("print(1 + 2)\n"),
    "bash": fenced(S) + fenced("echo 1 2 | python a.py\n", "sh"),
    "corrected": f"{fenced(T)}No:\n{fenced(S)}",
    "corrected, then cut": f"{fenced(S)}or:\n```python\na, b = map(int, inp",
    "sys.stdin": fenced("import sys\na, b = map(int, sys.stdin.read().split())\nprint(a + b)\n"),
    "sys.stdin, imported apart": fenced("import sys\n")
    + fenced("a, b = map(int, sys.stdin.readline().split())\nprint(a + b)\n"),
    "open(0)": fenced("a, b = map(int, open(0).read().split())\nprint(a + b)\n")
    + fenced("print(3)\n"),
    "a function, then the program": fenced("def add(a, b):\n    return a + b\n")
    + fenced("a, b = map(int, input().split())\nprint(add(a, b))\n"),
    "main, called apart": fenced(
        "def main():\n    a, b = map(int, input().split())\n    print(a + b)\n"
    )
    + fenced("if __name__ == '__main__':\n    main()\n"),
    "imports with a limit": fenced("import sys\nsys.setrecursionlimit(10**6)\n")
    + fenced("def add(a, b):\n    return add(a - 1, b + 1) if a else b\n"
             "a, b = map(int, sys.stdin.readline().split())\nprint(add(a + 3000, b - 3000))\n"),
    "no fence": S,
    "no fence, with sentences": f"Solution:\n\n{S}\nThat is all.",
    "thoughts": f"<think>{T}</think>{fenced(S)}",
    "a fence in a text": fenced(f's = """\n```\n"""\n{S}'),
}  # fmt: skip
