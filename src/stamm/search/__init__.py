"""Search for activations: families of gradients, screened by their certificates and their cost."""
