"""`python -m sottovoce` is `sotto`."""

from sottovoce.cli.main import main

if __name__ == "__main__":
    main()
