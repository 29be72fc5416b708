"""A checkpoint's config.json, typed and checked.

fields    typed access to a JSON object
parts     what a network is made of: rotations, experts, activations, names of tensors
rope      the rotary embedding's settings
families  what each model_type sets, and which settings it may have
model     the whole: ModelConfig
"""

from symphony_kernel.executor.models.config.fields import Fields as Fields
from symphony_kernel.executor.models.config.model import ModelConfig as ModelConfig
from symphony_kernel.executor.models.config.model import load_config as load_config
from symphony_kernel.executor.models.config.model import parse_config as parse_config
from symphony_kernel.executor.models.config.parts import Activation as Activation
from symphony_kernel.executor.models.config.parts import Experts as Experts
from symphony_kernel.executor.models.config.parts import Rope as Rope
from symphony_kernel.executor.models.config.parts import TensorNames as TensorNames
