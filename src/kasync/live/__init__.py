"""Live engines: one server loop, over Flower or over Ray, whose clients really exist."""
