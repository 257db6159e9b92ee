"""How several processes train one model: rows, matrices, layers, sequences and checkpoints, divided over ranks."""
