"""`python -m shardd`."""

from shardd.cli.start import main

if __name__ == "__main__":
    main()
