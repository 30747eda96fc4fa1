"""What a trained decoder knows: held-out text in bits per byte, and English minimal pairs."""
