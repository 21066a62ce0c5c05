"""How does the same rule serve clients that really exist? One loop, over Flower or over Ray."""
