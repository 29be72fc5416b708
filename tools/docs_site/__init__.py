"""Hooks of the docs site: pages made at build time, and links into the repository."""
