"""SQL schema, under the path that plugins import; the home is `trinity.common.schema.sql_schema`."""

from trinity.common.schema.sql_schema import Base, DPODataModel, ExperienceModel, SFTDataModel, TaskModel

__all__ = ["Base", "DPODataModel", "ExperienceModel", "SFTDataModel", "TaskModel"]
