"""The command line: `stamm VERB THING key=value`."""
