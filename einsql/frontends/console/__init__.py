"""The command line: options, scripts, dot commands, tables on the terminal, the prompt."""
