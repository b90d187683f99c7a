from setuptools import setup

from trtllm_lite.plugins.library import plugin_library

setup(**plugin_library("dynamic_tanh.plugins"))
