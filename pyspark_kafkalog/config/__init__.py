"""Topic and broker-level configurations, with Kafka's names, defaults and limits. In reading order:

definitions      a configuration's name, type, default and allowed values, and how their texts are parsed
topic            the table of topic configurations, and a topic's effective values
broker           the settings of a whole log directory
group            the configurations of a single group
entries          configurations as Kafka describes them: effective values, and where each comes from
properties_file  Java's properties files
"""
