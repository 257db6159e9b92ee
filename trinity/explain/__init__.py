"""What a configuration amounts to: components and formulas, the effective loss and step, the gradient probe."""
