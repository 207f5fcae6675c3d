"""What experiments on the virtual clock are made of; the eddy and its modules are production's."""
