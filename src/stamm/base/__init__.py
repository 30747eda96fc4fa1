"""The ground: errors, configuration, files, units and the console. No torch."""
