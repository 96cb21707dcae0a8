"""From models to lowered graphs, and operators that are expanded there."""
