"""What runs when: event-driven simulations of a step, and better orders of its ops."""
