"""The API server goes away and comes back: how soon kroute follows again, and what a cluster of agents asks then."""
