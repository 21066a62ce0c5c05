"""Asynchronous federated learning: simulated at full scale, checked against its papers, deployed unchanged."""
