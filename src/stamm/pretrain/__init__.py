"""Pretraining: one decoder, one packed corpus, one schedule."""
