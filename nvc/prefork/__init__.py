"""The pre-fork server of the agent: requests of commands are carried out by forks of a process that has imported
everything."""
