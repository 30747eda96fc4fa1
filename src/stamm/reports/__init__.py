"""One self-contained HTML page per run. Reads run folders, imports no job."""
