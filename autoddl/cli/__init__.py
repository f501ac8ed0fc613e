"""The command line, `python -m autoddl COMMAND`: one file per command."""
