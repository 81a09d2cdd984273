"""What the containers of docker-compose.yml run besides Flower's own commands: keys, registration, certification."""
