"""Adapters: document filters and personal data in other pipelines, such as datatrove."""
