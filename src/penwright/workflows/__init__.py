"""What a person does with Penwright: plan, train, load, evaluate, optimize, export."""
