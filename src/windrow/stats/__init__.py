"""What a run says in numbers."""
