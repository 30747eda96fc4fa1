"""Consent and opt-outs: robots.txt, tdmrep.json, ai.txt, headers, metas, and lists of domains."""
