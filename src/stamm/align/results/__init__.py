"""Results of alignment: answers of an aligned model against those of the model it started from."""
