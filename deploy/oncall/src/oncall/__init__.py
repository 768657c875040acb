"""The reference application: an authentication log, and rules that react to it."""
