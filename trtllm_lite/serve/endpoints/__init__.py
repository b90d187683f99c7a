"""Defines the endpoints: each takes a request, and answers it with a response or with a stream of events."""
