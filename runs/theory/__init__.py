"""What algorithms do with batches drawn from a policy whose answers can be enumerated."""
