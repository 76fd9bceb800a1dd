"""Where bytes move: the rewrite engines and what they need to write a correct file."""
