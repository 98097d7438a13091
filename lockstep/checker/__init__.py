"""Proofs about a captured step: its gradients, its collectives' order, its random draws."""
