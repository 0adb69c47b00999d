"""The command line: options, scripts, dot commands, result tables and the prompt."""
