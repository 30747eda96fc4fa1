"""stamm's steps inside other people's pipelines; each file is the door to one of them."""
