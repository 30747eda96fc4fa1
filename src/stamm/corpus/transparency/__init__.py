"""Evidence for the outside: a data card and the public summary that the EU's AI Act asks for."""
