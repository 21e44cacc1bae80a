"""Skill retrieval that hands an agent a contract with roles, within a budget, in the place of a ranked list."""
