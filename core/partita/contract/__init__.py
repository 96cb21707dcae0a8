"""The interface of device plugins: what authors implement, and the objects they are given."""
