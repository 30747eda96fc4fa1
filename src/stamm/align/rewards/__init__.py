"""Rewards: rules, the protocol of a reward, and scoring files of answers."""
