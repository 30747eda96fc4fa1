"""What a trained decoder can repeat: planted passages continued, against passages never seen."""
