"""Pure functions on numbers: intervals, paired and clustered errors, power, sequential looks."""
