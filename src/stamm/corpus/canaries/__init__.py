"""Made-up texts and varied passages, planted beside the probes to measure memorization."""
