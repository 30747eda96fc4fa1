"""One self-contained page per run that a stranger can read. Reads run folders, imports no job."""
