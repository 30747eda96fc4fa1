"""From derived formulas to the source of torch functions, and to the texts that describe them."""
