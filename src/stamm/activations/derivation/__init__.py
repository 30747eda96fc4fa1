"""Derivation: a Spec's function, derivatives and parameter gradients, in stable forms."""
