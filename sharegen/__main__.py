"""`python -m sharegen`."""

from sharegen.cli import main

main()
