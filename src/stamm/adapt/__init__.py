"""Adaptation of trained models: another activation, fitted to the pre-activations of each layer."""
